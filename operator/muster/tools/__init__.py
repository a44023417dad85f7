"""Tools beside the core. They read the status, the contract and run directories. The core never imports them."""
