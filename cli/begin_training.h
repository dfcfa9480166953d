// `brigade train` as far as it takes no libtorch, in both programs.
#pragma once

#include <filesystem>

#include "brigade/config/train_config.h"
#include "cli/options.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

// Prints what is asked for in place of training; else checks what can fail
// without ranks, and where this process is their supervisor runs `rank_program`
// as ranks to their end. True: this process is a rank, and is still to train.
// `loaded`: gets what the arguments and the hub add to it.
bool begin_training(
    const TrainArguments& arguments,
    const Launch& launch,
    const std::filesystem::path& rank_program,
    LoadedConfig& loaded);

}  // namespace brigade::cli
