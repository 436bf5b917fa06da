"""Reading a run: the ledger of its time, the report, the live view, the figures.

Law: everything shown is derived from the journal's rows; nothing here is asked by the parts that act.

    journal ─record─► critical_path, devices, outcomes, bias, freshness ─► Report ─► text | JSON | HTML | PNG
    RunStatus + journal ─► dashboard (terminal) | plain log lines
"""
