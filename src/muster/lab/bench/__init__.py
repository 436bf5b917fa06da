"""Both sides of a claim, measured in one run, as ratios."""
