"""Things that tests of several folders share. No test module imports from another test module.

A helper of one folder stands in a module of that folder, or is a fixture of its conftest.
"""
