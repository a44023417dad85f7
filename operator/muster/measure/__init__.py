"""What measurements say: of the collectives of a world, and of what a job would cost in worlds that are not there yet."""
