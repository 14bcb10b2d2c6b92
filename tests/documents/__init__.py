"""Tests of the pages: every block of them is run or compared, every link leads somewhere."""
