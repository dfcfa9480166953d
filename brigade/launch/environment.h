// Who this process is among the processes of a run: read once at start from
// what torchrun, Open MPI's mpirun, MPICH's mpiexec, Slurm's srun or our own
// supervisor put into the environment, else one rank on its own.
//
// No libtorch. The environment comes in as a function, so that tests pass a
// map; only cli/ passes the real one.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

// How the ranks find one another. For one machine a file, which opens no port.
struct StoreAddress {
  // A file that the ranks share, or a server at host and port.
  enum class Kind { kFile, kTcp };
  Kind kind = Kind::kFile;
  // kFile: in a folder that only the user can open; empty for a world of one
  // rank, which needs no store.
  std::filesystem::path file;
  std::string host;  // kTcp
  int port = 0;      // kTcp
  // kTcp: the launcher already serves the store (torchrun's agent), so that
  // rank 0 connects like the others instead of listening.
  bool is_served = false;
  // kTcp, is_served: where rank 0 serves a store of the ranks' own if their
  // libtorch cannot use the launcher's (comm/store.h). Another port for each
  // job and each restart; 0 otherwise.
  int own_port = 0;
  bool operator==(const StoreAddress&) const = default;
};

// This process's place among the processes of a run.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  // "brigade", "torchrun", "mpirun", "mpiexec", "srun" or "single".
  std::string launcher = "single";
  StoreAddress store;
  // How often the launcher has restarted these ranks. Key prefixes of the
  // store must hold it, since a store may survive a restart.
  int restart_count = 0;
  // A launcher of MPI started this process, perhaps around another launcher:
  // MPI_Init() finds the ranks that it started.
  bool has_mpi = false;
  // What GLOO_SOCKET_IFNAME says; empty where it is not set.
  std::string interface;
  // The job's name where there is one (torchrun's run id, Slurm's job id, ...).
  std::string job_id;
  // Where this rank tells our supervisor its step and its last words
  // (launch/rank_report.h); empty under other launchers.
  std::filesystem::path report_file;
  // Our supervisor's standard error is a terminal, so that progress bars make
  // sense although this rank writes into a pipe.
  bool is_terminal = false;
};

// Returns the value of a variable, or std::nullopt where it is not set.
using GetEnv = std::function<std::optional<std::string>(std::string_view name)>;

// Throws ConfigError naming the variables and their values where they
// contradict one another or one is missing (MASTER_ADDR on several machines).
// Makes the private folder of a file store below the temporary folder.
LaunchEnvironment read_environment(const GetEnv& getenv);

// The process's own environment.
GetEnv process_environment();

// Gives a variable of the process a value where it has none, for a library that
// reads it later. Not while other threads read the environment.
void set_default_variable(const char* name, const char* value);

}  // namespace brigade
