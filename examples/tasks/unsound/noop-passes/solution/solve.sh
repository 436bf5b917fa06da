#!/bin/sh
echo eggs >> /app/notes.txt
