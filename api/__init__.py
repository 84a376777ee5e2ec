"""Ways in: HTTP, dashboard, command line; and the use cases behind them."""
