// Cores from affinity, topology and control groups, read from a made-up /proc and /sys.
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "cores.h"

namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root() : path_(fs::temp_directory_path() / ("moesaic-cores-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Root() { fs::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << '\n';
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::vector<int> allowed() {
  cpu_set_t set;
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

void lists() {
  CHECK(moesaic::parse_cpu_list("0-3,8") == (std::vector<int>{0, 1, 2, 3, 8}));
  CHECK(moesaic::parse_cpu_list("5") == std::vector<int>{5});
  CHECK(moesaic::parse_cpu_list("").empty());
  CHECK(moesaic::parse_cpu_list("x,2") == std::vector<int>{2});
}

void quotas() {
  Root root;
  CHECK(moesaic::cgroup_cpus(root.path()) == 0);
  root.write("proc/self/cgroup", "0::/a/b");
  root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  CHECK(moesaic::cgroup_cpus(root.path()) == 0);
  root.write("sys/fs/cgroup/a/cpu.max", "350000 100000");  // a parent's limit holds for its children
  CHECK(moesaic::cgroup_cpus(root.path()) == 3.5);
  root.write("sys/fs/cgroup/a/b/cpu.max", "150000 100000");
  CHECK(moesaic::cgroup_cpus(root.path()) == 1.5);

  Root old;
  old.write("proc/self/cgroup", "7:memory:/x\n4:cpu,cpuacct:/job");
  old.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1");
  old.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  CHECK(moesaic::cgroup_cpus(old.path()) == 0);
  old.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000");
  CHECK(moesaic::cgroup_cpus(old.path()) == 2.5);
}

void cores() {
  const std::vector<int> cpus = allowed();
  Root root;
  CHECK(moesaic::usable_cores(root.path()) == cpus);  // no topology: each is its own core
  std::string all;
  for (const int cpu : cpus) {
    all += (all.empty() ? "" : ",") + std::to_string(cpu);
  }
  for (const int cpu : cpus) {
    root.write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", all);
  }
  CHECK(moesaic::usable_cores(root.path()) == std::vector<int>{cpus[0]});  // threads of one core count once

  Root quota;
  quota.write("proc/self/cgroup", "0::/");
  quota.write("sys/fs/cgroup/cpu.max", "190000 100000");
  CHECK(moesaic::usable_cores(quota.path()).size() == 1);  // rounded down
  quota.write("sys/fs/cgroup/cpu.max", "50000 100000");
  CHECK(moesaic::usable_cores(quota.path()).size() == 1);  // but never none
}

}  // namespace

int main() {
  lists();
  quotas();
  cores();
  return 0;
}
