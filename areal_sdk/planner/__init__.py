"""`areal-sdk plan`: a simulation of the whole loop that says what a split of machines will give."""
