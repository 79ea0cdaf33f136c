import org.apache.spark.SecurityManager;
import org.apache.spark.SparkConf;
import org.apache.spark.internal.config.package$;
import org.apache.spark.rpc.RpcAddress;
import org.apache.spark.rpc.RpcEnv;
import scala.Option;

/** Connects to Spark endpoints, each given as NAME@PORT; prints IN or OUT for each. Settings: -Dspark.* properties. */
public class Intruder {
  public static void main(String[] places) {
    SparkConf conf = new SparkConf().set("spark.rpc.lookupTimeout", "10s").set("spark.network.timeout", "10s");
    SecurityManager manager = new SecurityManager(conf, Option.empty(), package$.MODULE$.AUTH_SECRET_FILE());
    RpcEnv env = RpcEnv.create("intruder", "127.0.0.1", 0, conf, manager, true);
    for (String place : places) {
      String[] parts = place.split("@");
      try {
        env.setupEndpointRef(new RpcAddress("127.0.0.1", Integer.parseInt(parts[1])), parts[0]);
        System.out.println("IN " + place);
      } catch (Throwable refused) {
        System.out.println("OUT " + place + " " + refused);
      }
    }
    System.exit(0);
  }
}
