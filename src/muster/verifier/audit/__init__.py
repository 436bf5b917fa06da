"""Does a task's verifier deserve trust? `muster audit` finds out before the task may train.

untouched states must fail ─┐
reference solution passes  ─┼─► trials ─► judge ─► faults (none: sound) ─► tasks.audit_record
exploits earn nothing      ─┘

exploits/*.sh   the battery: hostile scripts, run as the agent
stages          a task as the steps that are played one after the other
play            plays a script on a task, freezes and grades what it leaves
verdict_files   attacks made from a task's own tests: is the verdict a file that the agent may write?
judge           trials in, faults out
auditor         runs it all for one task
"""
