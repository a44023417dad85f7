"""The start of the second stage: what replicas show and report is recorded in the status, because it must outlive their pods."""
