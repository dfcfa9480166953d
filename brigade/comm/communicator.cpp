#include "brigade/comm/communicator.h"
