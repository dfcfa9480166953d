// PyTorch's own ways of dividing what replicas hold, as bench_zero's peers.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/supervisor.h"

namespace brigade {

// Starts bench/peers/zero.py, where there is a Python with PyTorch 2.
class ZeroPeers {
 public:
  struct Shape {
    int layers, rows, steps, warmup;
    int64_t width;
  };
  struct Figures {
    double step_ms = 0;
    double held_bytes = 0;
  };

  explicit ZeroPeers(Shape shape)
      : shape_(shape),
        python_(process_environment()("BRIGADE_PEERS_PYTHON")
                    .value_or("/usr/bin/python3")) {}

  // Empty: they can run.
  std::string why_not() const {
    const int code = start(
        1,
        {python_,
         "-c",
         "try:\n import torch.distributed.fsdp as fsdp\n"
         "except Exception:\n fsdp = None\n"
         "raise SystemExit(0 if hasattr(fsdp, 'fully_shard') else 1)"});
    return code == 0 ? ""
                     : fmt::format(
                           "{} has no PyTorch 2 with fully_shard(); name one "
                           "that has "
                           "by BRIGADE_PEERS_PYTHON",
                           python_);
  }

  // `kind`: ddp, zero1 or fsdp2. Of rank 0.
  Figures run(
      const std::string& kind,
      int ranks,
      const std::filesystem::path& out) const {
    const int code = start(
        ranks,
        {python_,
         BRIGADE_SOURCE_DIR "/bench/peers/zero.py",
         "--kind=" + kind,
         fmt::format("--layers={}", shape_.layers),
         fmt::format("--width={}", shape_.width),
         fmt::format("--rows={}", shape_.rows),
         fmt::format("--steps={}", shape_.steps),
         fmt::format("--warmup={}", shape_.warmup),
         "--out=" + out.string()});
    Figures figures;
    std::ifstream file(out);
    if (code != 0 || !(file >> figures.step_ms >> figures.held_bytes))
      throw Error(
          ExitCode::kUnexpected,
          fmt::format("[bench] bench/peers/zero.py --kind={} failed", kind));
    return figures;
  }

 private:
  static int start(int ranks, std::vector<std::string> command) {
    SupervisorOptions options;
    options.nproc = ranks;
    options.command = std::move(command);
    options.threads_per_rank = 1;
    options.unprefixed_rank = 0;
    options.environment = {
        {"GLOO_SOCKET_IFNAME", "lo"}, {"OPENBLAS_NUM_THREADS", "1"}};
    return supervise(options).exit_code;
  }

  Shape shape_;
  std::string python_;
};

}  // namespace brigade
