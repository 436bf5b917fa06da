"""The checks of generated tasks: standard library only, joined into each task's `tests/check.py`.

Law: the judge is one program for all families; what a family expects is data (`tests/expected.json`). Nothing of
the agent's is imported, executed or followed in the process that writes the reward.

    files.py  what stands under a directory          code.py  what a program answers, run as a guest
    git.py    what a repository holds                 main.py  all checks ─► 1 or 0, written last
"""
