"""The second stage: from a status and facts to the next status, and to the actions that it asks for."""
