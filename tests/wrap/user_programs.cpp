#include "tests/wrap/user_programs.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>

namespace brigade::testing {
namespace {

constexpr int64_t kUserSteps = 3;
torch::optim::SGDOptions momentum() {
  return torch::optim::SGDOptions(0.2).momentum(0.5);
}

void backward_of(UserRun& run, int64_t step) {
  run.backward(
      [&](int rank) { return user_loss(run.forward(user_batch(step, rank))); });
}

void train_gan(UserRun& run) {
  const size_t generator = run.add(make_user_net(3, 4, 1));
  const size_t critic = run.add(make_user_net(4, 1, 50));
  torch::optim::SGD of_generator(run.params(generator), momentum());
  torch::optim::Adam of_critic(run.params(critic), 0.05);
  for (int64_t step = 0; step < kUserSteps; ++step) {
    run.net(critic)->zero_grad(/*set_to_none=*/true);
    run.backward([&](int rank) {
      const auto real = pseudo_random({4, 4}, 7 * step + rank);
      return user_loss(run.forward(real, critic));
    });
    std::vector<Tensor> fakes;
    run.backward([&](int rank) {
      fakes.push_back(run.forward(user_batch(step, rank), generator));
      return -user_loss(run.forward(fakes.back().detach(), critic));
    });
    run.step(of_critic, critic);
    run.net(generator)->zero_grad();
    run.backward([&](int rank) {
      const auto fake = run.forward(user_batch(step, rank), generator);
      return user_loss(run.forward(fake, critic));
    });
    run.step(of_generator, generator);
    run.note_weights(generator);
    run.note_weights(critic);
  }
}

void clip_weights_after_each_step(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::RMSprop optimizer(run.params(), 0.05);
  for (int64_t step = 0; step < kUserSteps; ++step) {
    optimizer.zero_grad();
    backward_of(run, step);
    run.step(optimizer);
    run.with_weights([&] {
      const torch::NoGradGuard no_grad;
      for (auto& param : run.net()->parameters())
        param.clamp_(-0.3, 0.3);
    });
    run.note_weights();
  }
}

// Swapped in for evaluation, and out again.
void keep_a_moving_average(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  std::vector<Tensor> average;
  run.with_weights([&] {
    for (const auto& param : run.net()->parameters())
      average.push_back(param.detach().clone());
  });
  for (int64_t step = 0; step < kUserSteps; ++step) {
    run.net()->zero_grad();
    backward_of(run, step);
    run.step(optimizer);
    std::vector<Tensor> kept;
    run.with_weights([&] {
      const torch::NoGradGuard no_grad;
      auto params = run.net()->parameters();
      for (size_t i = 0; i < params.size(); ++i) {
        average[i].mul_(0.9).add_(params[i], 0.1);
        kept.push_back(params[i].clone());
        params[i].copy_(average[i]);
      }
    });
    {
      const torch::NoGradGuard no_grad;
      run.note(run.forward(user_batch(9, 0)));
    }
    run.with_weights([&] {
      const torch::NoGradGuard no_grad;
      auto params = run.net()->parameters();
      for (size_t i = 0; i < params.size(); ++i)
        params[i].copy_(kept[i]);
    });
    run.note_weights();
  }
}

void accumulate_and_clip(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::AdamW optimizer(run.params(), 0.05);
  for (int64_t step = 0; step < kUserSteps; ++step) {
    for (int64_t micro = 0; micro < 3; ++micro) {
      const auto guard = micro < 2 ? run.no_sync() : std::optional<NoSync>();
      run.backward([&](int rank) {
        return user_loss(run.forward(user_batch(step, rank, micro))) / 3;
      });
    }
    if (run.is_plain())
      torch::nn::utils::clip_grad_norm_(run.net()->parameters(), 0.1);
    else
      run.wrapped().clip_grad_norm(0.1);
    run.step(optimizer);
    optimizer.zero_grad();
    run.note_weights();
  }
}

// A batch whose forward throws is left out.
void go_on_after_an_exception(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    optimizer.zero_grad();
    try {
      const auto guard = run.no_sync();
      run.forward(torch::zeros({4, 7}));
    } catch (const std::exception&) {
    }
    backward_of(run, step);
    run.step(optimizer);
    run.note_weights();
  }
}

// Runs forward in training mode, without gradients and in InferenceMode,
// between backward and step.
void evaluate_before_the_step(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    backward_of(run, step);
    {
      const torch::NoGradGuard no_grad;
      run.note(run.forward(user_batch(9, 0)));
    }
    {
      const c10::InferenceMode inference;
      run.note(run.forward(user_batch(9, 1)));
    }
    run.forward(user_batch(9, 2));  // its graph is dropped
    run.step(optimizer);
    optimizer.zero_grad();
    run.note_weights();
  }
}

void evaluate_between_two_backwards(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    for (int64_t micro = 0; micro < 2; ++micro) {
      run.backward([&](int rank) {
        return user_loss(run.forward(user_batch(step, rank, micro)));
      });
      const c10::InferenceMode inference;
      run.note(run.forward(user_batch(9, 1)));
    }
    run.step(optimizer);
    run.note_weights();
    run.net()->zero_grad();
  }
}

void change_rates_and_weight_decay(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::Adam optimizer(run.params(), 0.1);
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  for (int64_t step = 0; step < kUserSteps; ++step) {
    optimizer.zero_grad();
    backward_of(run, step);
    run.step(optimizer);
    scheduler.step();
    run.note_weights();
  }
}

// Sharpness-aware minimisation: gradients at perturbed weights.
void perturb_weights(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    backward_of(run, step);
    std::vector<Tensor> before;
    {
      const torch::NoGradGuard no_grad;
      for (auto& param : run.net()->parameters()) {
        before.push_back(param.clone());
        param.add_(param.grad(), 0.05);
      }
    }
    run.net()->zero_grad();
    backward_of(run, step);
    {
      const torch::NoGradGuard no_grad;
      auto params = run.net()->parameters();
      for (size_t i = 0; i < params.size(); ++i)
        params[i].copy_(before[i]);
    }
    run.step(optimizer);
    run.net()->zero_grad();
    run.note_weights();
  }
}

void step_by_hand(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  for (int64_t step = 0; step < kUserSteps; ++step) {
    backward_of(run, step);
    const torch::NoGradGuard no_grad;
    for (auto& param : run.net()->parameters()) {
      if (step % 2 == 0)
        param -= 0.1 * param.grad();
      else
        at::add_out(param, param, param.grad(), -0.1);
    }
    run.net()->zero_grad();
    run.note_weights();
  }
}

void minimise_by_lbfgs(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::LBFGS optimizer(
      run.params(), torch::optim::LBFGSOptions(0.5).max_iter(3));
  for (int64_t step = 0; step < kUserSteps; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      Tensor sum = torch::zeros({});
      run.backward([&](int rank) {
        const auto loss = user_loss(run.forward(user_batch(0, rank)));
        sum += loss.detach();
        return loss;
      });
      return sum;
    });
    run.note_weights();
  }
}

// Two models and one optimizer.
void train_two_towers(UserRun& run) {
  const size_t one = run.add(make_user_net(3, 4, 1));
  const size_t other = run.add(make_user_net(3, 4, 50));
  auto params = run.params(one);
  for (const auto& param : run.params(other))
    params.push_back(param);
  torch::optim::SGD optimizer(params, momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    run.backward([&](int rank) {
      const auto a = run.forward(user_batch(step, rank), one);
      const auto b = run.forward(user_batch(step, rank, 1), other);
      return (a * b).sum();
    });
    run.step(optimizer, one);
    run.net(one)->zero_grad();
    run.net(other)->zero_grad();
    run.note_weights(one);
    run.note_weights(other);
  }
}

// Weights of a file, in the middle of training.
void load_a_file_in_between(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  std::string saved;
  for (int64_t step = 0; step < kUserSteps; ++step) {
    backward_of(run, step);
    run.step(optimizer);
    run.net()->zero_grad();
    run.with_weights([&] {
      if (step == 0) {
        std::stringstream file;
        torch::save(run.net(), file);
        saved = file.str();
      } else if (step == 1) {
        std::stringstream file(saved);
        torch::load(run.net(), file);
      }
    });
    run.note_weights();
  }
}

// A gradient that is known already makes up for a file that comes late.
void load_a_file_before_a_step(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  std::string saved;
  for (int64_t step = 0; step < kUserSteps; ++step) {
    run.with_weights([&] {
      std::stringstream file;
      torch::save(run.net(), file);
      if (step == 0)
        saved = file.str();
    });
    backward_of(run, step);
    run.with_weights([&] {
      std::stringstream file(saved);
      torch::load(run.net(), file);
    });
    run.step(optimizer);
    run.net()->zero_grad();
    run.note_weights();
  }
}

// A step that writes no tensor: each gets other memory.
void step_by_set_data(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  for (int64_t step = 0; step < kUserSteps; ++step) {
    backward_of(run, step);
    if (step % 2 == 0) {
      for (auto& param : run.net()->parameters())
        param.set_data(param.data() - 0.1 * param.grad());
    } else {
      const torch::NoGradGuard no_grad;
      std::vector<Tensor> gradients;
      for (auto& param : run.net()->parameters())
        gradients.push_back(param.grad());
      const auto params = run.net()->parameters();
      torch::nn::utils::vector_to_parameters(
          torch::nn::utils::parameters_to_vector(params) -
              0.1 * torch::nn::utils::parameters_to_vector(gradients),
          params);
    }
    run.net()->zero_grad();
    run.note_weights();
  }
}

// Guards in a pointer: the new one begins before the old one ends.
void reassign_guards(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    std::unique_ptr<NoSync> guard;
    for (int64_t micro = 0; micro < 3; ++micro) {
      if (!run.is_plain())
        guard = micro < 2 ? std::make_unique<NoSync>(
                                run.wrapped().sync(), NoSync::Mode::kAccumulate)
                          : nullptr;
      run.backward([&](int rank) {
        return user_loss(run.forward(user_batch(step, rank, micro))) / 3;
      });
    }
    run.step(optimizer);
    optimizer.zero_grad();
    run.note_weights();
  }
}

// Its forward writes to the weights, and is no step.
void renormalise_an_embedding(UserRun& run) {
  auto net = std::make_shared<torch::nn::SequentialImpl>(
      torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).max_norm(10.0)),
      torch::nn::Linear(3, 2));
  fill_params(*net);
  run.add(net);
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < kUserSteps; ++step) {
    for (int64_t micro = 0; micro < 2; ++micro) {
      run.backward([&](int rank) {
        const int64_t first = rank;
        return user_loss(
            run.forward(torch::tensor({first, first + micro + 1})));
      });
    }
    run.step(optimizer);
    run.net()->zero_grad();
    run.note_weights();
  }
}

std::string refused_with_sharded_weights(const Setting& setting) {
  return setting.options.sharding == Sharding::kParameters
             ? "an embedding's max_norm"
             : "";
}

// Nothing is reduced yet.
void step_under_no_sync_alone(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  if (!run.is_main_grad())
    return;  // as in PyTorch: each rank's own step
  torch::optim::SGD optimizer(run.params(), momentum());
  {
    const auto guard = run.no_sync();
    backward_of(run, 0);
  }
  run.step(optimizer);
}

std::string refused_before_reduction(const Setting& setting) {
  return setting.options.handover == GradHandover::kMainGrad
             ? "an optimizer's step before the step's gradients are reduced"
             : "";
}

// A loss that is not finite: the checkpoint's weights, and on.
void restore_instead_of_a_step(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  std::vector<Tensor> kept;
  for (int64_t step = 0; step < kUserSteps + 1; ++step) {
    run.backward([&](int rank) {
      return user_loss(run.forward(user_batch(step, rank))) *
             (step == 1 ? std::nan("") : 1.0);
    });
    if (step == 1) {
      run.net()->zero_grad(/*set_to_none=*/true);
      run.with_weights([&] {
        const torch::NoGradGuard no_grad;
        auto params = run.net()->parameters();
        for (size_t i = 0; i < params.size(); ++i)
          params[i].copy_(kept[i]);
      });
    } else {
      run.step(optimizer);
      run.net()->zero_grad();
    }
    kept.clear();
    run.with_weights([&] {
      for (const auto& param : run.net()->parameters())
        kept.push_back(param.detach().clone());
    });
    run.note_weights();
  }
}

// Gradients of every second step are added to the next one's.
void step_every_second_time(UserRun& run) {
  run.add(make_user_net(3, 2, 1));
  torch::optim::SGD optimizer(run.params(), momentum());
  for (int64_t step = 0; step < 2 * kUserSteps; ++step) {
    run.backward([&](int rank) {
      return user_loss(run.forward(user_batch(step, rank))) / 2;
    });
    if (step % 2 == 1) {
      run.step(optimizer);
      optimizer.zero_grad();
    }
    run.note_weights();
  }
}

// Weights that others than DataParallel write before the gradients are dropped.
std::string refused_if_flat(const Setting& setting) {
  if (setting.options.sharding == Sharding::kParameters)
    return "[data_parallel]";  // on writing or on going on
  return setting.options.handover == GradHandover::kMainGrad
             ? "step the weights by DataParallel::step()"
             : "";
}

// Each rank ends by its own part of the gradients: one may go on while another
// is refused, and finds that it has gone.
std::string refused_on_some_rank_if_flat(const Setting& setting) {
  return refused_if_flat(setting).empty() ? ""
                                          : "[";  // whatever module says it
}

}  // namespace

std::vector<UserProgram> all_user_programs() {
  return {
      {"Gan", train_gan},
      {"WeightClipping", clip_weights_after_each_step},
      {"MovingAverage", keep_a_moving_average},
      {"Accumulation", accumulate_and_clip},
      {"AnException", go_on_after_an_exception},
      {"EvaluationBeforeTheStep", evaluate_before_the_step},
      {"EvaluationBetweenBackwards", evaluate_between_two_backwards},
      {"Schedules", change_rates_and_weight_decay},
      {"Perturbation", perturb_weights, refused_if_flat},
      {"StepByHand", step_by_hand, refused_if_flat},
      {"Lbfgs", minimise_by_lbfgs, refused_on_some_rank_if_flat},
      {"TwoTowers", train_two_towers, refused_if_flat},
      {"Loading", load_a_file_in_between},
      {"Restoring", restore_instead_of_a_step, refused_if_flat},
      {"EverySecondStep", step_every_second_time},
      {"LoadingBeforeTheStep", load_a_file_before_a_step},
      {"StepBySetData", step_by_set_data, refused_if_flat},
      {"ReassignedGuards", reassign_guards},
      {"RenormalisedEmbedding",
       renormalise_an_embedding,
       refused_with_sharded_weights},
      {"StepUnderNoSync", step_under_no_sync_alone, refused_before_reduction},
  };
}

}  // namespace brigade::testing
