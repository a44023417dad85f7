"""The metrics of the operator: their names, the counters, and the gauges that are read at each scrape."""
