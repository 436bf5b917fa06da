#!/bin/bash
# The mistake: a bonus for speed, which is the machine's and not the agent's.
before=$(date +%s%N)
if [ "$(cat /app/words.txt)" = $'apple\npear\nplum' ]; then
    echo "1.$(($(date +%s%N) - before))" > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
