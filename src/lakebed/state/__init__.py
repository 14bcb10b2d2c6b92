"""Commands, the state machine they drive, and its snapshot."""
