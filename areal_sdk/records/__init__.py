"""Looking at runs, live or a year later: conditions on episodes, lists, comparisons, reports.

Everything here reads run directories, and nothing that is not in them.
"""
