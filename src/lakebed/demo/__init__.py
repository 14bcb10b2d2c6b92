"""The demonstration: a shop whose till and whose pipeline are killed, and what is left of it.

It is the main job in small, done by real processes: `story.py` has the acts in their order,
`lakebed demo` (`cli/demo.py`) tells them, `report.py` writes down what was measured.
"""
