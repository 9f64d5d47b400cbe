"""Speech: WAV files to samples, samples to log-energies of mel filters, frames to contexts (DistBelief 5)."""
