"""The third stage: phase, conditions, message, counts and goodput. They follow from the state and decide nothing."""
