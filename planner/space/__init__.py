"""What can be decided: global choices, and the open knobs of each as a problem for the solver."""
