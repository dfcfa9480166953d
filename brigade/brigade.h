// The public API of the library: one include.
//
//   find_package(brigade CONFIG REQUIRED)
//   target_link_libraries(app PRIVATE brigade::brigade)
#pragma once

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/comm/world.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/data_parallel.h"
#include "brigade/data_parallel/optimizer_state.h"
#include "brigade/data_parallel/sync_batch_norm.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/weight_grad.h"
#include "brigade/optim/adamw.h"
