"""What ONE trial is: spec in, result out. Pure: no ray, no optuna, no mlflow, no network."""
