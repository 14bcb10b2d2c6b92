"""The demonstration: a writer and a pipeline are killed, and every record is checked.

Real processes do the work: `story.py` has the steps in order, `lakebed demo` (`cli/demo.py`)
reports them, `report.py` writes the measurements as a page.
"""
