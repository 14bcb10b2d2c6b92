"""`python -m lakebed.cli`, where the program `lakebed` is not on the path."""

from lakebed.cli import main

if __name__ == "__main__":
    main()
