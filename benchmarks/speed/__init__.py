"""What a fit or an answer costs: beside a busy process, over the rows, of what the device can do, of a prediction."""
