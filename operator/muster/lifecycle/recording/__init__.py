"""The start of the second stage. It records in the status what replicas show and report, because the records must outlive the pods."""
