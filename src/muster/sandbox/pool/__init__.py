"""Who gets the next sandbox, and for how long."""
