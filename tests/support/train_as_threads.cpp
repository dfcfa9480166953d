#include "train_as_threads.h"

#include <stdlib.h>

#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/train/trainer.h"
#include "ranks_as_threads.h"

namespace brigade::testing {

void train_as_threads(
    const std::filesystem::path& config,
    int ranks,
    const std::vector<std::string>& overrides,
    const std::function<StepRequests(int rank, int64_t step)>& requests,
    const std::function<void(int rank, int64_t step)>& on_step) {
  LoadOptions options{
      .path = config, .overrides = {}, .world_size = ranks, .find_model = {}};
  for (const std::string& text : overrides)
    options.overrides.push_back({text});
  const char* checks = ::getenv("BRIGADE_CHECK_COLLECTIVES");
  if (checks != nullptr && std::string(checks) == "1")
    options.overrides.push_back({"distributed.check_collectives=true"});
  TrainConfig loaded = load_train_config(options).config;
  loaded.run.overwrite = true;

  ops::set_up_tensor_memory();  // as the program does
  run_ranks_with_store(ranks, [&](int rank, const StorePtr& store) {
    LaunchEnvironment environment;
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = ranks;
    TrainingOptions training;
    // Beside the runs, which go with it.
    training.cache_dir = config.parent_path() / "cache";
    training.store = store;
    int64_t current = 0;
    training.watchdog.on_step = [&, rank](int64_t step, int64_t) {
      current = step;
      if (on_step)
        on_step(rank, step);
    };
    if (requests)
      training.requests = [&, rank] { return requests(rank, current); };
    run_training(loaded, environment, training);
  });
}

}  // namespace brigade::testing
