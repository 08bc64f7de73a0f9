"""The rules of `areal-sdk why`, by what they look at. A rule is a pure function of `Signs`."""
