"""A torch whose import takes a minute, as on a cold shared file system."""

import time

time.sleep(60)
