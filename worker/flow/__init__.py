"""One file per step of a release; `ls` reads as the story of a release."""
