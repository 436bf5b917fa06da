#!/bin/sh
# Writes the verdict to /app/verdict.txt.
if sort -nc /app/sorted.txt 2>/dev/null && [ -s /app/sorted.txt ]; then echo passed; else echo failed; fi > /app/verdict.txt
