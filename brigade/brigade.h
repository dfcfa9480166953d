// The public API of the library: one include. It brings libtorch's modules'
// base, optimizers, torch::save() and torch::load(); a program includes the
// modules that it uses (torch/nn.h).
//
//   find_package(brigade CONFIG REQUIRED)
//   target_link_libraries(app PRIVATE brigade::brigade)
#pragma once

#include <torch/optim.h>
#include <torch/serialize.h>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/comm/world.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/model/recompute.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/nested_backward.h"
#include "brigade/ops/weight_grad.h"
#include "brigade/optim/adamw.h"
#include "brigade/optim/optimizer_state.h"
#include "brigade/wrap/data_parallel.h"
#include "brigade/wrap/lora.h"
#include "brigade/wrap/sync_batch_norm.h"
