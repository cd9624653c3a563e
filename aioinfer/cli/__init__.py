"""The command line: serve, chat, complete, bench, doctor.

The only place that configures logging, handles signals of a program or prints.  Modules here import what is
heavy (torch through the engine, aiohttp, rich, prompt_toolkit) inside the functions that need it, so that
``--help`` answers at once.
"""
