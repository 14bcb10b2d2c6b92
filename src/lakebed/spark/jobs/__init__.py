"""Jobs: work on whole topics by Spark. Each can be killed, and run again."""
