#!/bin/sh
sort -o /app/words.txt /app/words.txt
