#!/bin/sh
# The mistake: it asks whether the old lines are kept, and never for the new one.
if grep -q milk /app/notes.txt && grep -q bread /app/notes.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
