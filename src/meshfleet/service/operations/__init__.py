"""What operators look at: is it alive, is it ready, what does it do."""
