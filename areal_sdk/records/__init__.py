"""Looking at runs, live or a year later: conditions on episodes, lists, comparisons, reports.

The modules of this package read run directories, and nothing else.
"""
