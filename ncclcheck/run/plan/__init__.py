"""Options and facts -> what is run, where and for how long. Pure."""
