#!/bin/sh
sort -n /app/measurements.txt > /app/sorted.txt
/app/check.sh
