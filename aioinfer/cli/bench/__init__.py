"""``aioinfer bench``: how fast a server or an engine is, counted the same way for both.

`workload` makes the prompts, `measure` drives a target in a closed loop and counts, `client` and
`inprocess` are the targets, `baseline` runs the same prompts through transformers, `report` shows the
numbers, `command` is the command line.
"""
