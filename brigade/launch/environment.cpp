#include "brigade/launch/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/base/parse_number.h"
#include "brigade/launch/network.h"
#include "brigade/launch/slurm_hosts.h"
#include "brigade/launch/store_file.h"

namespace brigade {

namespace {

// Reads the variables of one launcher, collecting what is wrong with them.
class Variables {
 public:
  Variables(const GetEnv& getenv, const char* launcher)
      : getenv_(getenv), launcher_(launcher) {}

  std::optional<std::string> text(std::string_view name) const {
    auto value = getenv_(name);
    // An empty variable is how shells unset one.
    if (value && value->empty())
      return std::nullopt;
    return value;
  }

  int required(std::string_view name) {
    if (!text(name)) {
      problem(fmt::format("{} is not set", name));
      return 0;
    }
    return optional(name, 0);
  }

  int optional(std::string_view name, int otherwise) {
    const auto value = text(name);
    if (!value)
      return otherwise;
    const int number = parse_number<int>(*value).value_or(-1);
    if (number >= 0)
      return number;
    problem(fmt::format("{}='{}' is not a number of 0 or more", name, *value));
    return otherwise;
  }

  void check(bool holds, const std::string& message) {
    if (!holds && problems_.empty())
      problem(message);
  }

  void problem(const std::string& message) {
    problems_.push_back(
        fmt::format("[launch] {} (environment of {})", message, launcher_));
  }

  void throw_if_any() const {
    if (!problems_.empty())
      throw ConfigError(problems_);
  }

 private:
  const GetEnv& getenv_;
  const char* launcher_;
  std::vector<std::string> problems_;
};

struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

void check_ranks(
    Variables& variables,
    const LaunchEnvironment& environment,
    const Names& names) {
  const auto below = [&](const char* a_name, int a, const char* b_name, int b) {
    variables.check(
        a < b, fmt::format("{}={} must be below {}={}", a_name, a, b_name, b));
  };
  variables.check(
      environment.world_size >= 1,
      fmt::format("{}=0, but a run has a rank", names.world_size));
  below(names.rank, environment.rank, names.world_size, environment.world_size);
  below(
      names.local_rank,
      environment.local_rank,
      names.local_world_size,
      environment.local_world_size);
  variables.check(
      environment.local_world_size <= environment.world_size,
      fmt::format(
          "{}={} is more than {}={}",
          names.local_world_size,
          environment.local_world_size,
          names.world_size,
          environment.world_size));
  // Open MPI 6 numbers the ranks of a host by where it binds them.
  variables.check(
      environment.launcher == "mpirun" ||
          environment.local_rank <= environment.rank,
      fmt::format(
          "{}={} is more than {}={}",
          names.local_rank,
          environment.local_rank,
          names.rank,
          environment.rank));
}

// A port below those that the kernel gives out by itself: the same on every
// rank of a job, and mostly another one for another job.
int derived_port(uint64_t number) {
  return 15000 + static_cast<int>(number % 15000);
}

StoreAddress tcp_store(Variables& variables, int default_port) {
  StoreAddress store{.kind = StoreAddress::Kind::kTcp};
  store.host = variables.text("MASTER_ADDR").value_or("");
  store.port = variables.optional("MASTER_PORT", default_port);
  variables.check(
      store.port >= 1 && store.port <= 65535,
      fmt::format("MASTER_PORT={} must be a port from 1 to 65535", store.port));
  return store;
}

LaunchEnvironment of_torchrun(const GetEnv& getenv) {
  const bool is_ours = getenv("BRIGADE_STORE_FILE").has_value();
  Variables variables(getenv, is_ours ? "brigade" : "torchrun");
  LaunchEnvironment environment{
      .rank = variables.required("RANK"),
      .world_size = variables.required("WORLD_SIZE"),
      .launcher = is_ours ? "brigade" : "torchrun"};
  // Kubeflow's PyTorchJob and scripts that set the variables themselves start
  // one rank per host and name no local rank.
  if (variables.text("LOCAL_RANK") || variables.text("LOCAL_WORLD_SIZE")) {
    environment.local_rank = variables.required("LOCAL_RANK");
    environment.local_world_size = variables.required("LOCAL_WORLD_SIZE");
  }
  check_ranks(
      variables,
      environment,
      {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (is_ours) {
    environment.store.file = *getenv("BRIGADE_STORE_FILE");
    environment.report_file =
        variables.text("BRIGADE_REPORT_FILE").value_or("");
    environment.is_terminal = variables.text("BRIGADE_TERMINAL") == "1";
  } else if (environment.world_size > 1) {
    variables.check(
        variables.text("MASTER_ADDR") && variables.text("MASTER_PORT"),
        fmt::format(
            "WORLD_SIZE={}, but MASTER_ADDR or MASTER_PORT is not set",
            environment.world_size));
    environment.store = tcp_store(variables, 0);
    environment.store.is_served =
        variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    environment.restart_count =
        variables.optional("TORCHELASTIC_RESTART_COUNT", 0);
    environment.job_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
    if (environment.store.is_served)
      environment.store.own_port = derived_port(fnv1a_64(fmt::format(
          "{} {} {}",
          environment.job_id,
          environment.store.port,
          environment.restart_count)));
  }
  variables.throw_if_any();
  return environment;
}

LaunchEnvironment of_open_mpi(const GetEnv& getenv) {
  Variables variables(getenv, "Open MPI");
  LaunchEnvironment environment{
      .rank = variables.required("OMPI_COMM_WORLD_RANK"),
      .world_size = variables.required("OMPI_COMM_WORLD_SIZE"),
      .local_rank = variables.required("OMPI_COMM_WORLD_LOCAL_RANK"),
      .local_world_size = variables.required("OMPI_COMM_WORLD_LOCAL_SIZE"),
      .launcher = "mpirun"};
  check_ranks(
      variables,
      environment,
      {"OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE"});
  // The first is drawn at random for each mpirun of Open MPI 4; the others
  // hold process ids.
  environment.job_id =
      variables.text("OMPI_MCA_orte_precondition_transports")
          .value_or(variables.text("PMIX_NAMESPACE").value_or(""));
  const bool is_one_machine =
      environment.local_world_size == environment.world_size;
  if (variables.text("MASTER_ADDR")) {
    variables.check(
        variables.text("MASTER_PORT") || !environment.job_id.empty(),
        "MASTER_ADDR is set, but MASTER_PORT is not, and this mpirun gives the "
        "job no name that a port could be derived from");
    environment.store =
        tcp_store(variables, derived_port(fnv1a_64(environment.job_id)));
  } else if (!is_one_machine) {
    variables.check(
        false,
        fmt::format(
            "OMPI_COMM_WORLD_SIZE={} ranks on several machines ({} on this "
            "one), but MASTER_ADDR is not set; run mpirun -x "
            "MASTER_ADDR=<host of rank 0>",
            environment.world_size,
            environment.local_world_size));
  } else if (environment.world_size > 1) {
    variables.throw_if_any();
    environment.store.file = private_store_file(
        getenv,
        "mpi-" + (environment.job_id.empty() ? parent_identity()
                                             : environment.job_id));
  }
  variables.throw_if_any();
  return environment;
}

// MPICH's and Intel MPI's mpiexec (Hydra).
LaunchEnvironment of_hydra(const GetEnv& getenv) {
  Variables variables(getenv, "mpiexec");
  LaunchEnvironment environment{
      .rank = variables.required("PMI_RANK"),
      .world_size = variables.required("PMI_SIZE"),
      .local_rank = variables.required("MPI_LOCALRANKID"),
      .local_world_size = variables.required("MPI_LOCALNRANKS"),
      .launcher = "mpiexec",
      .job_id = variables.text("SLURM_JOB_ID").value_or("")};
  check_ranks(
      variables,
      environment,
      {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  const bool is_one_machine =
      environment.local_world_size == environment.world_size;
  if (variables.text("MASTER_ADDR") || !is_one_machine) {
    variables.check(
        variables.text("MASTER_ADDR") && variables.text("MASTER_PORT"),
        fmt::format(
            "PMI_SIZE={} ranks, {} of them on this machine, but MASTER_ADDR or "
            "MASTER_PORT is not set; run mpiexec -genv MASTER_ADDR <host of "
            "rank 0> -genv MASTER_PORT <free port>",
            environment.world_size,
            environment.local_world_size));
    environment.store = tcp_store(variables, 0);
  } else if (environment.world_size > 1) {
    variables.throw_if_any();
    environment.store.file =
        private_store_file(getenv, "pmi-" + parent_identity());
  }
  variables.throw_if_any();
  return environment;
}

// A step may run on fewer nodes than its job has, so its own variables come
// first.
LaunchEnvironment of_slurm(const GetEnv& getenv) {
  Variables variables(getenv, "Slurm");
  LaunchEnvironment environment{
      .rank = variables.required("SLURM_PROCID"),
      .world_size = variables.optional(
          "SLURM_STEP_NUM_TASKS", variables.optional("SLURM_NTASKS", 0)),
      .local_rank = variables.required("SLURM_LOCALID"),
      .launcher = "srun",
      .restart_count = variables.optional("SLURM_RESTART_COUNT", 0),
      .job_id = variables.text("SLURM_JOB_ID").value_or("")};
  const std::string nodes =
      variables.text("SLURM_STEP_NODELIST")
          .value_or(variables.text("SLURM_JOB_NODELIST").value_or(""));
  variables.check(environment.world_size > 0, "SLURM_NTASKS is not set");
  if (environment.world_size > 1) {
    variables.check(!nodes.empty(), "SLURM_JOB_NODELIST is not set");
    variables.check(!environment.job_id.empty(), "SLURM_JOB_ID is not set");
  }
  variables.throw_if_any();

  const SlurmHosts hosts =
      nodes.empty() ? SlurmHosts{"", 1} : parse_slurm_hosts(nodes);
  const auto tasks =
      variables.text("SLURM_STEP_TASKS_PER_NODE")
          .value_or(variables.text("SLURM_TASKS_PER_NODE").value_or(""));
  const int node_count =
      static_cast<int>(std::min<uint64_t>(hosts.count, 1 << 30));
  if (node_count == 1)
    environment.local_world_size = environment.world_size;
  else if (!tasks.empty())
    environment.local_world_size =
        slurm_tasks_of_node(tasks, variables.optional("SLURM_NODEID", 0));
  else
    environment.local_world_size =
        (environment.world_size + node_count - 1) / node_count;
  check_ranks(
      variables,
      environment,
      {"SLURM_PROCID",
       "SLURM_NTASKS",
       "SLURM_LOCALID",
       "the node's number of tasks "});

  const std::string step = variables.text("SLURM_STEP_ID").value_or("0");
  if (environment.world_size == 1) {
    variables.throw_if_any();
    return environment;
  }
  if (variables.text("MASTER_ADDR") || node_count > 1) {
    // Another port for steps of one job that run side by side.
    const uint64_t job = std::strtoull(environment.job_id.c_str(), nullptr, 10);
    const uint64_t step_number = std::strtoull(step.c_str(), nullptr, 10);
    environment.store =
        tcp_store(variables, derived_port(job * 7 + step_number));
    if (environment.store.host.empty())
      environment.store.host = hosts.first;
  } else {
    variables.throw_if_any();
    environment.store.file = private_store_file(
        getenv,
        fmt::format(
            "slurm-{}-{}-{}",
            environment.job_id,
            step,
            environment.restart_count));
  }
  variables.throw_if_any();
  return environment;
}

LaunchEnvironment of_launcher(const GetEnv& getenv) {
  // srun and mpirun may start torchrun, and a job of Slurm may start any of
  // the others: the innermost launcher decides.
  if (getenv("BRIGADE_STORE_FILE") || getenv("RANK") || getenv("WORLD_SIZE"))
    return of_torchrun(getenv);
  if (getenv("OMPI_COMM_WORLD_RANK") || getenv("OMPI_COMM_WORLD_SIZE"))
    return of_open_mpi(getenv);
  const bool is_step = getenv("SLURM_STEP_ID").has_value();
  // srun --mpi=pmi2 sets PMI_RANK too, but not Hydra's local ranks.
  if (getenv("PMI_RANK") && (getenv("MPI_LOCALRANKID") || !is_step))
    return of_hydra(getenv);
  // A batch script and salloc's shell have SLURM_PROCID too, but they are no
  // task of srun: there --nproc counts. So it does in srun's only task.
  if (getenv("SLURM_PROCID") && is_step) {
    LaunchEnvironment environment = of_slurm(getenv);
    if (environment.world_size == 1)
      environment.launcher = "single";
    return environment;
  }
  return {};
}

}  // namespace

LaunchEnvironment read_environment(const GetEnv& getenv) {
  LaunchEnvironment environment = of_launcher(getenv);
  environment.interface = getenv(kInterfaceVariable).value_or("");
  // Open MPI's mpirun, Hydra's mpiexec and srun --mpi=pmi2, --mpi=pmix.
  environment.has_mpi = getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_RANK") ||
                        getenv("PMIX_RANK");
  return environment;
}

GetEnv process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr)
      return std::nullopt;
    return value;
  };
}

void set_default_variable(const char* name, const char* value) {
  ::setenv(name, value, /*overwrite=*/0);
}

}  // namespace brigade
