"""The report in words: six questions, each answered in one sentence, then its figures."""
